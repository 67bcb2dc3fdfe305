//! Attacks from inside, each named after what it tries.

mod files;
mod network;
mod resources;
mod warm;
