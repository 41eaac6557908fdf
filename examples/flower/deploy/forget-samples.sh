# Single samples are taken out, by client and position.
. "$(dirname "$0")/settings.sh"
printf 'client,position\n1,3\n1,5\n2,0\n' > "$WHERE/ids.csv"
flwr run "$WHERE/app" local --stream \
    --run-config "mode=\"unlearn\" methods=\"sealed\" forget-samples=\"$WHERE/ids.csv\"" "$@"
