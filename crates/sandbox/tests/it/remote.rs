//! The clients of remote providers on their own: what they need before anything is asked, what
//! they refuse to ask, and edge answers as the real servers were seen to give them. Whole runs are
//! tried against our own doors, in the whole-stack tests.

mod recorded;
mod replay;
mod settings;
