//! Whole-stack tests and benchmarks live beside this file; the library itself is empty.
