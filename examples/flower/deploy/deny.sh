# A new run of the federation, in which whoever was forgotten in the first is not asked.
. "$(dirname "$0")/settings.sh"
flwr run "$WHERE/app" local --stream \
    --run-config "mode=\"train\" run-folder=\"$WHERE/next\" deny=\"$WHERE/run\" min-nodes=$((NODES - 1))" "$@"
