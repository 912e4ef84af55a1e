//! What the router needs of a target.

use std::future::Future;

use generation::{GenerateEvent, GenerateRequest, ModelDescription, RoundReport, WorkerStats};
use tokio_stream::Stream;
use worker_api::{GenerateStream, RoundStream, SpeculationDescription, TargetClient, WorkerError};

/// A worker that continues prompts. Dropping the events of a call cancels it.
pub trait Target: Clone + Send + Sync + 'static {
    /// The events of one call.
    type Events: Stream<Item = Result<GenerateEvent, WorkerError>> + Send + 'static;
    /// Rounds as they happen.
    type Rounds: Stream<Item = Result<RoundReport, WorkerError>> + Send + 'static;

    /// Asks which model is loaded.
    fn describe(&self) -> impl Future<Output = Result<ModelDescription, WorkerError>> + Send;

    /// Asks how it speculates.
    fn speculation(
        &self,
    ) -> impl Future<Output = Result<SpeculationDescription, WorkerError>> + Send;

    /// Asks for the counters.
    fn stats(&self) -> impl Future<Output = Result<WorkerStats, WorkerError>> + Send;

    /// Asks for some of the rounds from now on, `max_per_second` at most.
    fn watch(
        &self,
        max_per_second: u32,
    ) -> impl Future<Output = Result<Self::Rounds, WorkerError>> + Send;

    /// Asks for a continuation.
    fn generate(
        &self,
        request: GenerateRequest,
    ) -> impl Future<Output = Result<Self::Events, WorkerError>> + Send;
}

impl Target for TargetClient {
    type Events = GenerateStream;
    type Rounds = RoundStream;

    async fn describe(&self) -> Result<ModelDescription, WorkerError> {
        Self::describe(self).await
    }

    async fn speculation(&self) -> Result<SpeculationDescription, WorkerError> {
        Self::describe_speculation(self).await
    }

    async fn stats(&self) -> Result<WorkerStats, WorkerError> {
        Self::stats(self).await
    }

    async fn watch(&self, max_per_second: u32) -> Result<RoundStream, WorkerError> {
        Self::watch(self, max_per_second).await
    }

    async fn generate(&self, request: GenerateRequest) -> Result<GenerateStream, WorkerError> {
        Self::generate(self, request).await
    }
}
