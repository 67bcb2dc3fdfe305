//! The plane over HTTP: real sockets, a real client, real keys.

mod attacks;
mod fleet;
mod fuzz;
mod house;
mod page;
mod people;
pub(crate) mod support;
mod table;
mod transcript;
