package apiserver

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

const (
	// electionLease names the Lease with which the servers of a workspace elect the one
	// that runs the controllers.
	electionLease = "atoll-controllers"

	// kube-controller-manager's timing: a crashed leader is replaced within
	// leaseDuration plus retryPeriod.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	// With only one server, the Lease is informational, and each renewal costs a
	// durable write.
	soleLeaseDuration = time.Minute
	soleDeadline      = 40 * time.Second
	soleRetry         = 10 * time.Second
)

// controllers are those of kube-controller-manager that a control plane needs for its
// own API. They run in one of the servers of a workspace.
type controllers struct {
	identity string
	// shared is set if other servers may use the keyspace. Without them this server
	// cannot lose its leadership to anyone.
	shared bool
	config *rest.Config
	rootCA []byte
	// legacyTokens signs the tokens of Secrets of type
	// kubernetes.io/service-account-token.
	legacyTokens serviceaccount.TokenGenerator
	// served reports whether this server is configured to serve a resource. A
	// controller that watched any other would wait forever for its cache.
	served func(schema.GroupVersionResource) bool
	// unowned is Config.Unowned.
	unowned []schema.GroupVersionResource
	// sharedGroups is Config.SharedGroups.
	sharedGroups func(context.Context) (func(group string) bool, error)
	// kinds are those without CRDs; nil if none are configured.
	kinds KindServer
}

func newControllers(cfg Config, loopback *rest.Config, kinds KindServer) (*controllers, error) {
	rootCA, err := os.ReadFile(cfg.TLS.RootCAFile)
	if err != nil {
		return nil, fmt.Errorf("read the root certificate: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(cfg.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the service-account key: %w", err)
	}
	legacyTokens, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("prepare to sign service-account tokens: %w", err)
	}
	return &controllers{
		identity:     cfg.Identity,
		shared:       cfg.Shared,
		config:       loopback,
		rootCA:       rootCA,
		legacyTokens: legacyTokens,
		served:       resourceConfig(cfg).ResourceEnabled,
		unowned:      cfg.Unowned,
		sharedGroups: cfg.SharedGroups,
		kinds:        kinds,
	}, nil
}

// run takes part in the leader election until ctx ends, and runs the controllers while
// this server leads. Losing the lease stops the controllers, not the server: it becomes
// a candidate again.
func (c *controllers) run(ctx context.Context) {
	config := rest.AddUserAgent(rest.CopyConfig(c.config), "leader-election")
	// Use a separate connection: on the one shared by the whole process, a renewal
	// would wait behind requests that fill caches.
	config.NextProtos = []string{"http/1.1"}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		klog.ErrorS(err, "cannot run controllers: no client for the leader election")
		return
	}
	if err := awaitSystemNamespace(ctx, client); err != nil {
		return // ctx ended
	}
	if !c.shared {
		c.runAlone(ctx, client)
		return
	}
	for ctx.Err() == nil {
		c.campaign(ctx, client)
	}
}

// runAlone runs the controllers until ctx ends, whether or not their Lease can be
// renewed: no other server could run them.
func (c *controllers) runAlone(ctx context.Context, client clientset.Interface) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          c.lock(client),
		LeaseDuration: soleLeaseDuration, RenewDeadline: soleDeadline, RetryPeriod: soleRetry,
		ReleaseOnCancel: true, Name: electionLease,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		// Only an error in the timing above leads here.
		klog.ErrorS(err, "cannot renew the Lease of the controllers")
		return
	}
	// Released after the controllers have stopped.
	shown, hide := context.WithCancel(context.WithoutCancel(ctx))
	var showing sync.WaitGroup
	defer showing.Wait()
	defer hide()
	showing.Go(func() {
		for shown.Err() == nil {
			elector.Run(shown)
		}
	})
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := c.lead(ctx); err != nil {
			klog.ErrorS(err, "controllers failed to start; retrying")
		}
	}, retryPeriod)
}

func (c *controllers) lock(client clientset.Interface) *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: electionLease},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.identity},
	}
}

// awaitSystemNamespace waits for the namespace of the election's Lease. On the very
// first start it is created shortly after readiness, and an election that fails to
// write its Lease waits for seconds.
func awaitSystemNamespace(ctx context.Context, client clientset.Interface) error {
	const interval = 50 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err == nil, nil
	})
}

// campaign waits for the lease, leads for one session, and returns when the session has
// ended and every controller has stopped.
func (c *controllers) campaign(ctx context.Context, client clientset.Interface) {
	// The candidacy outlives ctx by the time that the controllers take to stop. If the
	// lease were released earlier, the controllers of two servers could run at once.
	candidacy, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	var term session
	defer context.AfterFunc(ctx, func() {
		if !term.begun() {
			withdraw()
		}
	})()

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            c.lock(client),
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Name:            electionLease,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if !term.begin() {
					return
				}
				defer term.end()
				defer withdraw()
				run, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				if err := c.lead(run); err != nil {
					klog.ErrorS(err, "controllers failed to start; waiting for the next election")
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		// Only an error in the timing above leads here.
		klog.ErrorS(err, "cannot run controllers: leader election failed")
		<-ctx.Done()
		return
	}
	elector.Run(candidacy)
	term.close()
}

// session tracks whether this server leads. The elector reports that in its own
// goroutine, possibly after the election has ended.
type session struct {
	mu             sync.Mutex
	started, ended bool
	running        sync.WaitGroup
}

func (t *session) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.started = true
	t.running.Add(1)
	return true
}

func (t *session) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

func (t *session) end() { t.running.Done() }

// close prevents further sessions from starting, and waits until a running one has
// ended.
func (t *session) close() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.running.Wait()
}
