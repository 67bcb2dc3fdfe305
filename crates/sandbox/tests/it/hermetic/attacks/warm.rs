//! The same attacks once more, on workers that waited in their jails for the run.
#![allow(clippy::duplicate_mod, reason = "each attack is one test twice, by its module's name")]

#[path = "files.rs"]
mod files;
#[path = "network.rs"]
mod network;
#[path = "resources.rs"]
mod resources;
