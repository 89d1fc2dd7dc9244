"""How the steps, the logging and the evaluation of a LightningModule run."""
