"""The arena for fleets: policies that decide for several machines, with a virtual clock."""
