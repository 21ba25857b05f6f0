"""What a person looks at: figures and pages made from measurements."""
