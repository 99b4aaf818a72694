package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	memorycache "k8s.io/client-go/discovery/cached/memory"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/bootstrap"
	"k8s.io/kubernetes/pkg/controller/certificates/cleaner"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	namespacecontroller "k8s.io/kubernetes/pkg/controller/namespace"
	resourcequotacontroller "k8s.io/kubernetes/pkg/controller/resourcequota"
	serviceaccountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/ttlafterfinished"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	quotainstall "k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	informerResync  = 12 * time.Hour
	namespaceResync = 5 * time.Minute
	// quotaResync is how long a quota waits that was created before its kind was
	// discovered. Upstream counts it in the next resync, every 5 minutes. A resync
	// reads from caches and writes only changes.
	quotaResync = 20 * time.Second
	// discoveryPeriod is how soon garbage collection and quota notice a new or removed
	// kind. kube-controller-manager takes 30 s; here discovery is a call within the
	// process.
	discoveryPeriod = 5 * time.Second
)

// runner is a controller that is ready to run.
type runner struct {
	name string
	run  func(context.Context)
}

// leadership is the state that the controllers of one session share.
type leadership struct {
	*controllerManager
	client           clientset.Interface
	discovery        discovery.DiscoveryInterface
	metadata         metadata.Interface
	mapper           meta.ResettableRESTMapper
	caches           *caches
	informersStarted chan struct{}
}

// lead runs the controllers until ctx ends, and returns when they have stopped.
func (c *controllerManager) lead(ctx context.Context) error {
	l, err := c.newLeadership(ctx)
	if err != nil {
		return err
	}
	runners, err := l.runners(ctx)
	if err != nil {
		return err
	}
	l.run(ctx, runners)
	return nil
}

// run runs controllers until ctx ends, and returns when they have stopped.
func (l *leadership) run(ctx context.Context, runners []runner) {
	var running sync.WaitGroup
	for _, r := range runners {
		running.Go(func() {
			r.run(klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), r.name)))
		})
	}
	running.Go(func() {
		// Garbage collection cannot delete objects of kinds that the mapper does not
		// know.
		wait.UntilWithContext(ctx, func(context.Context) { l.mapper.Reset() }, discoveryPeriod)
	})
	l.caches.Start(ctx.Done())
	close(l.informersStarted)
	running.Wait()
	l.caches.wait()
}

func (c *controllerManager) newLeadership(ctx context.Context) (*leadership, error) {
	config := rest.AddUserAgent(rest.CopyConfig(c.config), "controllers")
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the controllers' client: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the controllers' metadata client: %w", err)
	}
	return &leadership{
		controllerManager: c,
		client:            client,
		discovery:         c.usedKinds(client.Discovery()),
		metadata:          metadataClient,
		mapper:            restmapper.NewDeferredDiscoveryRESTMapper(memorycache.NewMemCacheClient(client.Discovery())),
		caches:            newCaches(metadataClient, client),
		informersStarted:  make(chan struct{}),
	}, nil
}

// usedKinds returns discovery without the kinds that have no objects.
func (c *controllerManager) usedKinds(all discovery.DiscoveryInterface) discovery.DiscoveryInterface {
	if c.kinds == nil {
		return all
	}
	return c.kinds.Used(all)
}

// maker creates a controller.
type maker struct {
	name string
	make func(context.Context) (func(context.Context), error)
}

// runners creates the controllers. All of them register their informers here, before
// any informer starts.
func (l *leadership) runners(ctx context.Context) ([]runner, error) {
	makers := []maker{
		{"namespace", l.namespaces},
		{"garbage-collector", l.garbageCollector},
		{"resource-quota", l.resourceQuota},
		{"service-account", l.serviceAccounts},
		{"service-account-token", l.serviceAccountTokens},
		{"root-ca-publisher", l.rootCAPublisher},
		{"cluster-role-aggregation", l.clusterRoleAggregation},
		{"token-cleaner", l.tokenCleaner},
		{"validating-policy-types", l.validatingPolicyTypes},
	}
	if l.signingCert != "" {
		makers = append(makers, maker{"certificate-signing", l.certificateSigning}, maker{"certificate-cleaner", l.certificateCleaner})
	}
	if l.workloads {
		makers = append(makers, maker{"kubernetes-service", l.kubernetesService}, maker{"ttl-after-finished", l.ttlAfterFinished})
	}
	var all []runner
	if l.encryption != nil {
		all = append(all, runner{"encryption", l.encryption})
	}
	made, err := create(ctx, makers)
	return append(all, made...), err
}

func create(ctx context.Context, makers []maker) (all []runner, err error) {
	for _, m := range makers {
		run, err := m.make(ctx)
		if err != nil {
			return nil, fmt.Errorf("create the %s controller: %w", m.name, err)
		}
		all = append(all, runner{m.name, run})
	}
	return all, nil
}

// namespaces empties namespaces that are being deleted.
func (l *leadership) namespaces(ctx context.Context) (func(context.Context), error) {
	c := namespacecontroller.NewNamespaceController(ctx, l.client, l.metadata,
		l.discovery.ServerPreferredNamespacedResources,
		l.caches.typed.Core().V1().Namespaces(), namespaceResync, v1.FinalizerKubernetes)
	return l.afterKindsLoaded(func(ctx context.Context) { c.Run(ctx, 10) }), nil
}

// afterKindsLoaded runs a controller once all kinds are known. Before, it would treat
// unknown kinds as removed.
func (l *leadership) afterKindsLoaded(run func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		if l.kinds == nil || l.kinds.Await(ctx) == nil {
			run(ctx)
		}
	}
}

// garbageCollector deletes objects whose owners no longer exist.
func (l *leadership) garbageCollector(ctx context.Context) (func(context.Context), error) {
	ignored := ignoring(garbagecollector.DefaultIgnoredResources(), l.unowned)
	view := &ownersView{}
	var client metadata.Interface = l.metadata
	var informers resourceInformers = l.caches
	if l.sharedGroups != nil {
		client, informers = ownersClient{client, view}, ownersInformers{informers, view}
	}
	gc, err := garbagecollector.NewGarbageCollector(ctx, l.client, client, l.mapper, ignored, informers, l.informersStarted)
	if err != nil {
		return nil, err
	}
	return l.afterKindsLoaded(func(ctx context.Context) {
		if l.sharedGroups != nil {
			if err := view.load(ctx, l.sharedGroups); err != nil {
				return // ctx ended
			}
		}
		both(ctx,
			func(ctx context.Context) { gc.Run(ctx, 20, discoveryPeriod) },
			func(ctx context.Context) { gc.Sync(ctx, l.discovery, discoveryPeriod) })
	}), nil
}

// resourceQuota counts the use of quotas; admission rejects what exceeds them.
func (l *leadership) resourceQuota(ctx context.Context) (func(context.Context), error) {
	discover := l.usedKinds(discovery.NewDiscoveryClient(l.client.Discovery().RESTClient())).ServerPreferredNamespacedResources
	served := generic.ListerFuncForResourceFunc(l.caches.ForResource)
	evaluators, err := core.NewEvaluators(served, l.caches.typed, l.served)
	if err != nil {
		return nil, err
	}
	evaluators = append(evaluators, l.unownedEvaluators(ctx)...)
	quota := generic.NewConfiguration(evaluators, ignoring(quotainstall.DefaultIgnoredResources(), l.unowned))
	c, err := resourcequotacontroller.NewController(ctx, &resourcequotacontroller.ControllerOptions{
		QuotaClient:               l.client.CoreV1(),
		ResourceQuotaInformer:     l.caches.typed.Core().V1().ResourceQuotas(),
		ResyncPeriod:              controller.StaticResyncPeriodFunc(quotaResync),
		InformerFactory:           l.caches,
		ReplenishmentResyncPeriod: controller.StaticResyncPeriodFunc(informerResync),
		DiscoveryFunc:             discover,
		IgnoredResourcesFunc:      quota.IgnoredResources,
		InformersStarted:          l.informersStarted,
		Registry:                  generic.NewRegistry(quota.Evaluators()),
		UpdateFilter:              quotainstall.DefaultUpdateFilter(),
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		both(ctx,
			func(ctx context.Context) { c.Run(ctx, 5) },
			func(ctx context.Context) { c.Sync(ctx, discover, discoveryPeriod) })
	}, nil
}

// serviceAccounts creates the ServiceAccount "default" in each namespace.
func (l *leadership) serviceAccounts(ctx context.Context) (func(context.Context), error) {
	c, err := serviceaccountcontroller.NewServiceAccountsController(klog.FromContext(ctx),
		l.caches.typed.Core().V1().ServiceAccounts(), l.caches.typed.Core().V1().Namespaces(), l.client,
		serviceaccountcontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

// ttlAfterFinished deletes Jobs whose spec.ttlSecondsAfterFinished is over.
func (l *leadership) ttlAfterFinished(ctx context.Context) (func(context.Context), error) {
	c := ttlafterfinished.New(ctx, l.caches.typed.Batch().V1().Jobs(), l.client)
	return func(ctx context.Context) { c.Run(ctx, 2) }, nil
}

// serviceAccountTokens fills Secrets of type kubernetes.io/service-account-token.
func (l *leadership) serviceAccountTokens(ctx context.Context) (func(context.Context), error) {
	c, err := serviceaccountcontroller.NewTokensController(klog.FromContext(ctx),
		l.caches.typed.Core().V1().ServiceAccounts(), l.caches.tokens.Core().V1().Secrets(), l.client,
		serviceaccountcontroller.TokensControllerOptions{TokenGenerator: l.legacyTokens, RootCA: l.rootCA})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 2) }, nil
}

// rootCAPublisher creates ConfigMap kube-root-ca.crt in each namespace.
func (l *leadership) rootCAPublisher(context.Context) (func(context.Context), error) {
	c, err := rootcacertpublisher.NewPublisher(l.caches.rootCAs.Core().V1().ConfigMaps(), l.caches.typed.Core().V1().Namespaces(), l.client, l.rootCA)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

// clusterRoleAggregation fills ClusterRoles that aggregate others.
func (l *leadership) clusterRoleAggregation(context.Context) (func(context.Context), error) {
	c := clusterroleaggregation.NewClusterRoleAggregation(l.caches.typed.Rbac().V1().ClusterRoles(), l.client.RbacV1())
	return func(ctx context.Context) { c.Run(ctx, 5) }, nil
}

// clientCertificateValidity bounds the certificates that are signed on request; spec.expirationSeconds may
// ask for less.
const clientCertificateValidity = 365 * 24 * time.Hour

// certificateSigning signs approved CertificateSigningRequests for clients of this API. Those for kubelets
// are not signed: there are no nodes.
func (l *leadership) certificateSigning(ctx context.Context) (func(context.Context), error) {
	c, err := signer.NewKubeAPIServerClientCSRSigningController(ctx, l.client,
		l.caches.typed.Certificates().V1().CertificateSigningRequests(), l.signingCert, l.signingKey, clientCertificateValidity)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

// certificateCleaner deletes old CertificateSigningRequests.
func (l *leadership) certificateCleaner(context.Context) (func(context.Context), error) {
	c := cleaner.NewCSRCleanerController(l.client.CertificatesV1().CertificateSigningRequests(), l.caches.typed.Certificates().V1().CertificateSigningRequests())
	return func(ctx context.Context) { c.Run(ctx, 1) }, nil
}

// tokenCleaner deletes expired bootstrap tokens.
func (l *leadership) tokenCleaner(context.Context) (func(context.Context), error) {
	c, err := bootstrap.NewTokenCleaner(l.client, l.caches.bootstrapTokens.Core().V1().Secrets(), bootstrap.DefaultTokenCleanerOptions())
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

// both runs two loops of one controller until both have ended.
func both(ctx context.Context, a, b func(context.Context)) {
	var running sync.WaitGroup
	running.Go(func() { a(ctx) })
	running.Go(func() { b(ctx) })
	running.Wait()
}
