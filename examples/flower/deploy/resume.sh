# Go on after a crash with whatever is not done.
. "$(dirname "$0")/settings.sh"
flwr run "$WHERE/app" local --stream --run-config "resume-from=\"$WHERE/run\"" "$@"
