"""What users need to test programs and parts of their own."""
