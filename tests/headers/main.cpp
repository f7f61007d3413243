// Linked with two sets of objects that include every header.
int main() {}
