//! How two nodes find out that they belong together, before anything else is said.

use crate::transport::error::{End, GreetingError};
use crate::transport::options::Identity;
use crate::transport::wire::{Frame, Hello, Lane, Message, NodeId, VERSION};

/// What this node says to `to`.
pub(super) fn hello(own: &Identity, to: NodeId, lane: Lane) -> Frame {
    let &Identity {
        cluster,
        node,
        boot,
        level,
        ..
    } = own;
    Frame::of_connection(
        0,
        Message::Hello(Hello {
            version: VERSION,
            cluster,
            node,
            to,
            lane,
            level,
            boot,
        }),
    )
}

/// What the first frame of a connection says, if it is a greeting.
pub(super) fn greeting(frame: Frame) -> Result<Hello, End> {
    match frame.message {
        Message::Hello(hello) => Ok(hello),
        Message::Refused(refused) => Err(End::Refused(refused.reason)),
        other => Err(End::Unexpected {
            expected: "hello",
            found: other.kind(),
        }),
    }
}

/// Whether this node and the one that says `hello` may speak to each other.
pub(super) fn check(own: &Identity, hello: &Hello) -> Result<(), GreetingError> {
    let node = hello.node;
    if hello.cluster != own.cluster {
        return Err(GreetingError::Cluster {
            node,
            own: hex(&own.cluster),
            found: hex(&hello.cluster),
        });
    }
    if node == own.node {
        return Err(GreetingError::Own { node });
    }
    if hello.to != own.node {
        return Err(GreetingError::Misdirected {
            own: own.node,
            found: hello.to,
        });
    }
    if !own.spoken.contains(&hello.level) {
        return Err(GreetingError::Level {
            node,
            found: hello.level,
            spoken: own.spoken.clone(),
        });
    }
    Ok(())
}

/// The same for the answer of a node that this one has connected to.
pub(super) fn check_answer(
    own: &Identity,
    expected: NodeId,
    lane: Lane,
    hello: &Hello,
) -> Result<(), GreetingError> {
    // The cluster first: in another one the numbers mean nothing.
    if hello.cluster == own.cluster && hello.node != expected {
        return Err(GreetingError::Node {
            expected,
            found: hello.node,
        });
    }
    check(own, hello)?;
    match hello.lane == lane {
        true => Ok(()),
        false => Err(GreetingError::Lane {
            expected: lane,
            found: hello.lane,
        }),
    }
}

fn hex(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
