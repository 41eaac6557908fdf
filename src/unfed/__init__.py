"""unfed: take a participant, a class or samples out of a trained federated model, and show that they are out."""
