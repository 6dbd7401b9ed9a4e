"""What runs have measured, for programs that show curves: TensorBoard, MLflow, Weights & Biases."""
