package apiserver

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/controllers"
)

// electionLease names the Lease with which the servers of a workspace elect the one
// that runs the controllers.
const electionLease = "atoll-controllers"

// controllerManager runs those controllers of kube-controller-manager that a control
// plane needs for its own API. They run in one of the servers of a workspace.
type controllerManager struct {
	identity string
	// shared is set if other servers may use the keyspace. Without them this server
	// cannot lose its leadership to anyone.
	shared bool
	config *rest.Config
	rootCA []byte
	// legacyTokens signs the tokens of Secrets of type
	// kubernetes.io/service-account-token.
	legacyTokens serviceaccount.TokenGenerator
	// signingCert and signingKey are TLS.SigningCertFile and TLS.SigningKeyFile.
	signingCert, signingKey string
	// served reports whether this server is configured to serve a resource. A
	// controller that watched any other would wait forever for its cache.
	served func(schema.GroupVersionResource) bool
	// workloads is Config.WorkloadAPIs.
	workloads bool
	// unowned is Config.Unowned.
	unowned []schema.GroupVersionResource
	// sharedGroups is Config.SharedGroups.
	sharedGroups func(context.Context) (func(group string) bool, error)
	// kinds are those without CRDs; nil if none are configured.
	kinds KindServer
	// encryption encrypts existing objects; may be nil.
	encryption func(context.Context)
	// turn is DemandConfig.Turn.
	turn func(context.Context) (end func(), err error)
	log  *slog.Logger
}

func newControllerManager(cfg Config, loopback *rest.Config, kinds KindServer) (*controllerManager, error) {
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
	return &controllerManager{
		identity:     cfg.Identity,
		shared:       cfg.Shared,
		config:       loopback,
		rootCA:       rootCA,
		legacyTokens: legacyTokens,
		signingCert:  cfg.TLS.SigningCertFile,
		signingKey:   cfg.TLS.SigningKeyFile,
		served:       resourceConfig(cfg).ResourceEnabled,
		workloads:    cfg.WorkloadAPIs,
		unowned:      cfg.Unowned,
		sharedGroups: cfg.SharedGroups,
		kinds:        kinds,
		log:          cfg.Log,
	}, nil
}

// run takes part in the leader election until ctx ends, and runs the controllers while
// this server leads. Losing the Lease stops the controllers, not the server: it becomes
// a candidate again. The Lease is released once the controllers have stopped.
func (c *controllerManager) run(ctx context.Context) {
	election := controllers.Election{
		REST:         rest.AddUserAgent(rest.CopyConfig(c.config), "leader-election"),
		Namespace:    metav1.NamespaceSystem,
		Name:         electionLease,
		Identity:     c.identity,
		SingleServer: !c.shared,
		Clock:        clock.RealClock{},
		Log:          c.log,
	}
	election.Run(ctx, c.lead)
}
