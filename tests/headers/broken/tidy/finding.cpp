int* none() { return 0; }
