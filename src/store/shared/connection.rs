//! Connection to Redis or Valkey: one server, the master that sentinels name, or a Cluster.

use super::options::{SharedOptions, Topology};
use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo, Pipeline, RedisConnectionInfo, RedisResult,
    TlsCertificates, TlsMode, Value, cmd,
};

/// Connection that many tasks use at the same time.
#[derive(Clone)]
pub enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Server with entries of its own. In a Cluster, it has this host and port.
pub struct Master(Option<(String, u16)>);

impl Connection {
    /// Connects, and logs in. The error names the servers.
    pub async fn open(options: &SharedOptions) -> Result<Self, String> {
        let (password, ca) = (options.password()?, options.ca()?);
        let certificates = ca.map(|ca| TlsCertificates { client_tls: None, root_cert: Some(ca) });
        let connected = Self::connect(options, password.as_deref(), certificates).await;
        connected.map_err(|error| format!("{}: {error}", options.servers.join(", ")))
    }

    async fn connect(
        options: &SharedOptions,
        password: Option<&str>,
        certificates: Option<TlsCertificates>,
    ) -> RedisResult<Self> {
        // The deadline of the caller ends a command that gets no reply, so this library sets none.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        match &options.topology {
            Topology::Single => {
                let server = options.servers.first().map_or("", |server| server);
                let info = server.into_connection_info()?;
                let settings = with_login(info.redis_settings().clone(), options.user.as_deref(), password);
                let info = info.set_redis_settings(settings);
                let client = match certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates)?,
                    None => Client::open(info)?,
                };
                Ok(Self::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
            }
            Topology::Sentinel(master) => {
                let mut client = sentinel_client(options, master, password, certificates)?;
                Ok(Self::Single(client.get_async_connection_with_config(&config).await?))
            }
            Topology::Cluster => {
                let mut builder = ClusterClient::builder(options.servers.iter().map(String::as_str))
                    .connection_timeout(options.deadline)
                    .response_timeout(options.deadline);
                if let Some(user) = &options.user {
                    builder = builder.username(user);
                }
                if let Some(password) = password {
                    builder = builder.password(password);
                }
                if let Some(certificates) = certificates {
                    builder = builder.certs(certificates);
                }
                Ok(Self::Cluster(builder.build()?.get_async_connection().await?))
            }
        }
    }

    /// Returns whether the budgets of one command must be in one slot.
    pub fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns all servers that have entries of their own: the masters of a Cluster, or the only server.
    pub async fn masters(&self) -> RedisResult<Vec<Master>> {
        let Self::Cluster(connection) = self else { return Ok(vec![Master(None)]) };
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let replies = connection.clone().route_command(cmd("PING"), all).await?;
        let replies: Vec<(String, Value)> = redis::from_redis_value(replies)?;
        let address = |address: &str| {
            let (host, port) = address.rsplit_once(':')?;
            Some(Master(Some((host.to_owned(), port.parse().ok()?))))
        };
        let masters = replies.iter().map(|(name, _)| address(name));
        let unknown = || (redis::ErrorKind::Client, "a node of the Cluster has no address").into();
        masters.collect::<Option<_>>().ok_or_else(unknown)
    }

    /// Sends a command to this server.
    pub async fn send_to(&self, master: &Master, command: Cmd) -> RedisResult<Value> {
        match (self, &master.0) {
            (Self::Cluster(connection), Some((host, port))) => {
                let address = SingleNodeRoutingInfo::ByAddress { host: host.clone(), port: *port };
                connection.clone().route_command(command, RoutingInfo::SingleNode(address)).await
            }
            (Self::Cluster(connection), None) => connection.clone().req_packed_command(&command).await,
            (Self::Single(connection), _) => connection.clone().req_packed_command(&command).await,
        }?
        .extract_error()
    }

    /// Sends commands, and returns the replies in their order. One server gets them as one pipeline.
    pub async fn send(&self, commands: Vec<Cmd>) -> RedisResult<Vec<RedisResult<Value>>> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Self::Single(connection) => {
                let mut pipeline = Pipeline::with_capacity(commands.len());
                let count = commands.len();
                commands.into_iter().for_each(|command| _ = pipeline.add_command(command));
                let replies = connection.clone().send_packed_commands(&pipeline, 0, count).await?;
                Ok(replies.into_iter().map(Value::extract_error).collect())
            }
            Self::Cluster(connection) => {
                let send = |command: Cmd| {
                    let mut connection = connection.clone();
                    async move { connection.req_packed_command(&command).await.and_then(Value::extract_error) }
                };
                Ok(join_all(commands.into_iter().map(send)).await)
            }
        }
    }
}

/// Returns a client that asks the sentinels for the address of the master.
fn sentinel_client(
    options: &SharedOptions,
    master: &str,
    password: Option<&str>,
    certificates: Option<TlsCertificates>,
) -> RedisResult<SentinelClient> {
    let address = |server: &String| Ok(server.as_str().into_connection_info()?.addr().clone());
    let sentinels: Vec<ConnectionAddr> = options.servers.iter().map(address).collect::<RedisResult<_>>()?;
    let is_tls = sentinels.iter().any(|one| matches!(one, ConnectionAddr::TcpTls { .. }));
    let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?;
    if is_tls {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = certificates {
        builder = builder
            .set_client_to_sentinel_certificates(certificates.clone())
            .set_client_to_redis_certificates(certificates);
    }
    if let Some(user) = &options.user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    builder.build()
}

fn with_login(mut info: RedisConnectionInfo, user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    if let Some(user) = user {
        info = info.set_username(user);
    }
    if let Some(password) = password {
        info = info.set_password(password);
    }
    info
}
