//! The clients of remote providers, against servers on loopback that answer as the real ones were
//! seen to answer, and that can be made to fail or lie in one way at a time.

mod daytona;
mod e2b;
mod http;
mod kit;
mod lies;
mod machine;
mod opensandbox;
mod switch;
mod trick;
mod walk;
