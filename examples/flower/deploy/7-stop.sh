# End what was started here, by its process id.
. "$(dirname "$0")/settings.sh"
for pid in "$WHERE"/pids/*; do kill "$(cat "$pid")" 2> /dev/null || true; rm "$pid"; done
