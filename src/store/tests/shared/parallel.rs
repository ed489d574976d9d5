//! Parallel transactions of several nodes never exceed a limit.

use super::*;

/// 200 sessions on 10 users through four nodes, each with recipients one after the other: each user's limit admits exactly
/// as many as on one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_nodes_admit_as_many_as_one() {
    let redis = Redis::launch().await;
    let bucket = Quota::rate(Algorithm::TokenBucket, parse_rate("37 / 1000d", Units::Things).unwrap(), None);
    let policy = of(vec![Limit::new("l", Count::Recipients, vec![Field::User], bucket)]);
    let nodes: Arc<Vec<Store>> = Arc::new(redis.nodes(4, &policy));
    let session = |n: usize| {
        let nodes = nodes.clone();
        tokio::spawn(async move {
            let mut admitted = 0;
            for _ in 0..5 {
                admitted += admit(&nodes[n % 4], &format!("user{}", n % 10), 1, at(0)).await;
            }
            (n % 10, admitted)
        })
    };
    let sessions: Vec<_> = (0..200).map(session).collect();
    let mut admitted = [0; 10];
    for session in sessions {
        let (user, count) = session.await.unwrap();
        admitted[user] += count;
    }
    assert_eq!(admitted, [37; 10]);
    let conflicts: u64 = nodes.iter().map(|node| node.core.metrics.state.conflicts.get()).sum();
    assert!(conflicts > 0, "the nodes did not compete");
    close(Arc::try_unwrap(nodes).ok().unwrap()).await;
}
