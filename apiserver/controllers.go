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
	// electionLease names the Lease by which servers of a workspace agree
	// whose controllers run.
	electionLease = "atoll-controllers"

	// kube-controller-manager's timing: a crashed leader is replaced within
	// leaseDuration plus retryPeriod.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	// Where there is one server, its Lease only says so, and costs a durable write each
	// time.
	soleDuration = time.Minute
	soleDeadline = 40 * time.Second
	soleRetry    = 10 * time.Second
)

// controllers are those of kube-controller-manager that a control plane needs
// to keep its own promises. They run in one of the servers of a workspace.
type controllers struct {
	identity string
	// shared says that other servers may have the keyspace, too. Without them there is
	// nobody to lose a term to.
	shared bool
	config *rest.Config
	rootCA []byte
	// legacyTokens signs the tokens of Secrets of type
	// kubernetes.io/service-account-token.
	legacyTokens serviceaccount.TokenGenerator
	// served tells which resources this server is configured to serve. A
	// controller that watched any other would wait for its cache for ever.
	served func(schema.GroupVersionResource) bool
	// unowned is Config.Unowned.
	unowned []schema.GroupVersionResource
	// sharedGroups is Config.SharedGroups.
	sharedGroups func(context.Context) (func(group string) bool, error)
	// kinds without CRDs; nil if there is no source of them. store tells which of them
	// have objects.
	kinds *kindServer
	store *usedStore
}

func newControllers(cfg Config, loopback *rest.Config, kinds *kindServer, storage *keyspaceStorage) (*controllers, error) {
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
		store:        &usedStore{kv: storage.client.KV},
	}, nil
}

// run takes part in the election until ctx ends and runs the controllers
// whenever this server leads. Losing the lease stops the controllers, not the
// server: it stands for election again.
func (c *controllers) run(ctx context.Context) {
	config := rest.AddUserAgent(rest.CopyConfig(c.config), "leader-election")
	// A connection of its own: on the one that everybody in this process shares, a renewal
	// would wait behind what fills their caches.
	config.NextProtos = []string{"http/1.1"}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		klog.ErrorS(err, "Controllers do not run: no client for the election")
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
// renewed: nobody else could run them.
func (c *controllers) runAlone(ctx context.Context, client clientset.Interface) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          c.lock(client),
		LeaseDuration: soleDuration, RenewDeadline: soleDeadline, RetryPeriod: soleRetry,
		ReleaseOnCancel: true, Name: electionLease,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		// Only a mistake in the timing above gets here.
		klog.ErrorS(err, "The Lease of the controllers cannot be kept")
		return
	}
	// Given back when the controllers have stopped.
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
			klog.ErrorS(err, "Controllers could not start; they are tried again")
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

// awaitSystemNamespace waits for the namespace of the election's Lease. On the
// very first start it comes a moment after readiness, and an election that
// fails to write its Lease waits for seconds.
func awaitSystemNamespace(ctx context.Context, client clientset.Interface) error {
	const interval = 50 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err == nil, nil
	})
}

// campaign waits for the lease, leads for one term and returns when the term
// has ended and every controller has stopped.
func (c *controllers) campaign(ctx context.Context, client clientset.Interface) {
	// The candidacy outlives ctx by the time that the controllers take to
	// stop: a lease given back earlier would let two servers' controllers
	// run at once.
	candidacy, withdraw := context.WithCancel(context.WithoutCancel(ctx))
	defer withdraw()
	var term term
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
					klog.ErrorS(err, "Controllers could not start; the next election follows")
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		// Only a mistake in the timing above gets here.
		klog.ErrorS(err, "Controllers do not run: the election cannot be held")
		<-ctx.Done()
		return
	}
	elector.Run(candidacy)
	term.close()
}

// term tracks whether this server leads. The elector announces that in a
// goroutine of its own, which may come after the election is over.
type term struct {
	mu             sync.Mutex
	started, ended bool
	running        sync.WaitGroup
}

func (t *term) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.started = true
	t.running.Add(1)
	return true
}

func (t *term) begun() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.started
}

func (t *term) end() { t.running.Done() }

// close lets no term begin any more and waits for the end of one that has.
func (t *term) close() {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.running.Wait()
}
