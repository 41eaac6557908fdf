# Two classes are taken out, at every client.
. "$(dirname "$0")/settings.sh"
flwr run "$WHERE/app" local --stream --run-config 'mode="unlearn" methods="sealed" forget-classes="1,2"' "$@"
