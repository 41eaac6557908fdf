# What the other scripts share. Everything stays on this machine: 127.0.0.1 only.
export WHERE="${WHERE:-$PWD/deployment}"        # certificates, keys, logs, results
export PORT="${PORT:-9443}"                     # the SuperLink's port; SuperNode k listens on PORT + 1 + k for its own app
export NODES="${NODES:-3}"                      # how many SuperNodes
export ALLOW="${ALLOW-forget}"                  # what a client lets be done with rows that are to be forgotten: count them
export DATABASE="${DATABASE:-$WHERE/state.db}"   # what the SuperLink knows, kept over a restart
export FLWR_HOME="$WHERE/flwr"                  # where Flower keeps its own configuration
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export TLS="--ssl-ca-certfile $WHERE/ca.crt --ssl-certfile $WHERE/server.crt --ssl-keyfile $WHERE/server.key"
mkdir -p "$WHERE/logs" "$WHERE/pids" "$FLWR_HOME"
