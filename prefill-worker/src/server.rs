//! The gRPC service.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use proto::prefill::v1 as wire;
use proto::prefill::v1::prefill_server::Prefill;
use tokio::sync::mpsc::Receiver;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use worker_api::{
    compress_event_to_proto, compress_request_from_proto, compress_status, prefill_stats_to_proto,
    prefill_to_proto,
};

use crate::counters::Counters;
use crate::handle::Handle;
use crate::job::Event;

/// The service, there from the first moment; it answers once the device was looked at.
#[derive(Debug)]
pub(crate) struct PrefillServer {
    handle: OnceLock<Handle>,
    counters: Arc<Counters>,
}

impl PrefillServer {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self {
            handle: OnceLock::new(),
            counters,
        }
    }

    pub fn set_handle(&self, handle: Handle) {
        // Called once, by the role.
        let _first = self.handle.set(handle);
    }

    fn handle(&self) -> Result<&Handle, Status> {
        let starting = || Status::unavailable("opening the prefill drafter's device");
        self.handle.get().ok_or_else(starting)
    }
}

#[tonic::async_trait]
impl Prefill for PrefillServer {
    type CompressStream = Events;

    async fn describe(
        &self,
        _request: Request<wire::DescribeRequest>,
    ) -> Result<Response<wire::PrefillDescription>, Status> {
        Ok(Response::new(prefill_to_proto(&self.handle()?.describe())))
    }

    async fn compress(
        &self,
        request: Request<wire::CompressRequest>,
    ) -> Result<Response<Events>, Status> {
        let handle = self.handle()?;
        let request = compress_request_from_proto(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let (request_id, tokens) = (request.request_id.clone(), request.tokens.len());
        let events = handle.compress(request).map_err(|error| {
            tracing::debug!(request_id, tokens, %error, "refused");
            compress_status(&error)
        })?;
        Ok(Response::new(Events(events)))
    }

    async fn park(
        &self,
        _request: Request<wire::ParkRequest>,
    ) -> Result<Response<wire::Parked>, Status> {
        let parked = self.handle()?.park().await;
        parked.map_err(|error| compress_status(&error))?;
        Ok(Response::new(wire::Parked {}))
    }

    async fn stats(
        &self,
        _request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::PrefillStats>, Status> {
        Ok(Response::new(prefill_stats_to_proto(self.counters.stats())))
    }
}

/// An answer on its way. Dropped when the caller leaves, which cancels the prompt.
#[derive(Debug)]
pub(crate) struct Events(Receiver<Event>);

impl Stream for Events {
    type Item = Result<wire::CompressEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|event| {
            Some(match event? {
                Ok(event) => compress_event_to_proto(&event)
                    .map_err(|error| Status::internal(error.to_string())),
                Err(error) => Err(compress_status(&error)),
            })
        })
    }
}
