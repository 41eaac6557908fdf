# Whether it went well, what came out, and what it cost.
. "$(dirname "$0")/settings.sh"
flwr ls local --format json > "$WHERE/ls.json"         # "status": finished:completed, or finished:failed
unfed report "$WHERE/run"                              # the same report as for a simulation
unfed flower costs "$WHERE/run" --ls "$WHERE/ls.json"  # what crossed, beside Flower's own figures
