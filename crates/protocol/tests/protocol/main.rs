//! Requests and replies: against a client's implementation of the protocol, in pieces, and mutated.

mod fuzz;
mod replies;
mod requests;
