//! The hermetic tier: what a script gets, and what it cannot do.

mod attacks;
mod basics;
pub(crate) mod kit;
mod loud;
mod suite;
mod walls;
