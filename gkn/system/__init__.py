"""Files that are whole or absent, memory, machine facts, seeded generators and argument checks."""
