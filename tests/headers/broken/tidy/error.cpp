int none() { return nothing; }
