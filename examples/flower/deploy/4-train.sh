# The app: one pyproject.toml. Train.
. "$(dirname "$0")/settings.sh"
test -e "$WHERE/app" || unfed flower init "$WHERE/app" --nodes "$NODES" --run-folder "$WHERE/run"
flwr run "$WHERE/app" local --stream --run-config 'mode="train"' "$@"
