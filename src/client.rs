//! The HTTP client of the commands that talk to a server.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use router::Secret;
use serde_json::Value;

/// The server is of this host most often.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's base address and the connections to it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    http: Client,
    url: String,
}

impl Server {
    /// `key` goes with every request.
    pub(crate) fn new(url: &str, key: Option<&Secret>) -> Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let value = HeaderValue::try_from(format!("Bearer {}", key.reveal()));
            let mut value = value.context("the API key cannot stand in a header")?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let http = Client::builder()
            .default_headers(headers)
            .connect_timeout(CONNECT_TIMEOUT)
            // The supervisor asks once and would keep the connection to its router.
            .pool_max_idle_per_host(0)
            // A proxy of the environment must not get what is for the local server.
            .no_proxy()
            .build()
            .context("making an HTTP client")?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the server can answer requests now.
    pub(crate) async fn is_ready(&self) -> bool {
        let answer = self
            .http
            .get(format!("{}/health/ready", self.url))
            .timeout(CONNECT_TIMEOUT)
            .send();
        answer
            .await
            .is_ok_and(|answer| answer.status() == StatusCode::OK)
    }

    /// Asks whether the server serves.
    ///
    /// # Errors
    /// It is not there, or says why it does not serve yet or any more.
    pub(crate) async fn check_health(&self) -> Result<()> {
        let answer = self
            .http
            .get(format!("{}/health", self.url))
            .timeout(CONNECT_TIMEOUT)
            .send()
            .await
            .with_context(|| format!("asking {}", self.url))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let body: Value = answer.json().await.unwrap_or_default();
        let reason = body["reason"].as_str().unwrap_or("it does not say why");
        bail!("{} answers {status}: {reason}", self.url)
    }

    /// The first model of the list.
    pub(crate) async fn model(&self) -> Result<String> {
        let answer = self
            .http
            .get(format!("{}/v1/models", self.url))
            .send()
            .await
            .with_context(|| format!("asking {} for its models", self.url))?;
        let list: Value = checked(answer).await?.json().await?;
        let name = list["data"][0]["id"].as_str();
        Ok(name.context("the server lists no model")?.to_owned())
    }

    /// Posts JSON and hands on each event of the answer as it arrives.
    ///
    /// # Errors
    /// The server refuses or breaks off, an event is an error, or `take` fails.
    pub(crate) async fn stream(
        &self,
        path: &str,
        body: &Value,
        mut take: impl FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let mut response = self.post(path, body).await?;
        let mut buffer = Vec::new();
        while let Some(bytes) = response.chunk().await.context("the answer broke off")? {
            buffer.extend_from_slice(&bytes);
            while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line);
                let Some(data) = line.trim_end().strip_prefix("data: ") else {
                    continue;
                };
                if data == "[DONE]" {
                    return Ok(());
                }
                let event: Value = serde_json::from_str(data)?;
                if let Some(message) = event["error"]["message"].as_str() {
                    bail!("{message}");
                }
                take(event)?;
            }
        }
        bail!("the answer broke off")
    }

    /// Posts JSON and gives the answer as it arrives.
    async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        let answer = self
            .http
            .post(format!("{}{path}", self.url))
            .json(body)
            .send()
            .await
            .with_context(|| format!("asking {}", self.url))?;
        checked(answer).await
    }
}

/// Turns an error body into an error.
async fn checked(answer: Response) -> Result<Response> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body = answer.text().await.unwrap_or_default();
    let message = serde_json::from_str::<Value>(&body)
        .ok()
        .and_then(|body| body["error"]["message"].as_str().map(str::to_owned));
    bail!("the server answers {status}: {}", message.unwrap_or(body))
}
