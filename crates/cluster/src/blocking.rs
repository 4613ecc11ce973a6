//! Where what blocks is done.

use std::future::Future;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Does what blocks on a thread that may. On a runtime of one thread that is this one: nothing else
/// happens meanwhile, so a simulation, which has such a runtime for each node, replays exactly.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is ending, and with it the task that awaits this.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The same of what also waits.
pub(crate) async fn blocking_while<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = Handle::current();
    match runtime.runtime_flavor() {
        RuntimeFlavor::CurrentThread => work.await,
        _ => blocking(move || runtime.block_on(work)).await,
    }
}
