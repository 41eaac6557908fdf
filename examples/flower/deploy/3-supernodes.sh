# Each SuperNode's key is registered under the client's name, then it connects. What a node allows beyond training and
# counting stands in its node config, allow="forget": where it runs, not at the server.
. "$(dirname "$0")/settings.sh"
for k in $(seq 0 $((NODES - 1))); do
    flwr supernode register "$WHERE/node$k.pub" local --name "$k"
    flower-supernode $TLS --root-certificates "$WHERE/ca.crt" --superlink "127.0.0.1:$PORT" \
        --auth-supernode-private-key "$WHERE/node$k" --host 127.0.0.1 --port $((PORT + 1 + k)) \
        --node-config "partition-id=$k num-partitions=$NODES device=\"cpu\" allow=\"$ALLOW\"" >> "$WHERE/logs/node$k.log" 2>&1 &
    echo $! > "$WHERE/pids/node$k"
done
