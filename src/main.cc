#include <cstdio>
int main() { std::puts("athanor"); }
