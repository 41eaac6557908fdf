# Client 0 leaves: take it out of the model in force, with NoT.
. "$(dirname "$0")/settings.sh"
flwr run "$WHERE/app" local --stream --run-config 'mode="unlearn" forget-clients="0"' "$@"
