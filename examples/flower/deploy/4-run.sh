# The app: one pyproject.toml. Train, take client 0 out with NoT, look at the result.
. "$(dirname "$0")/settings.sh"
test -e "$WHERE/app" || unfed flower init "$WHERE/app" --nodes "$NODES" --run-folder "$WHERE/run"
flwr run "$WHERE/app" local --stream "$@"
flwr ls local --format json > "$WHERE/ls.json"
