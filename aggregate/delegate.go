package aggregate

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// verdictsFor is how long a member's answer holds, as with upstream's servers
	// that delegate.
	verdictsFor = 10 * time.Second
	// wayFor is how long the way to a member holds: a kubeconfig may be replaced.
	wayFor = 30 * time.Second
	// askFor bounds one question: a client waits for it.
	askFor = 3 * time.Second
)

// Delegation is an authorizer for groups whose SharedAPI leaves it to the members
// to say what their users may do. It asks the member that a user is of, by
// SubjectAccessReview and under the name that the member knows the user by. Of
// everything and everybody else it has no opinion.
//
// A member can so allow its own users what they do to the groups exposed to it, and
// nothing else: not in another group, nor to users of another member.
type Delegation struct {
	terms Terms
	reach Reach
	clock clock.PassiveClock

	mu   sync.Mutex
	ways map[string]way
}

// Terms tells on which terms a group is exposed to a member, if it is.
type Terms func(cluster, group string) (terms v1alpha1.SharedAPISpec, exposed bool)

// Reach gives the configuration for requests to a member, and a digest that tells
// one way to it from another.
type Reach func(ctx context.Context, cluster string) (cfg *rest.Config, digest string, err error)

// way is how to ask one member.
type way struct {
	digest     string
	since      time.Time
	authorizer authorizer.Authorizer
}

// NewDelegation asks members where the terms say so.
func NewDelegation(terms Terms, reach Reach, clk clock.PassiveClock) *Delegation {
	return &Delegation{terms: terms, reach: reach, clock: clk, ways: map[string]way{}}
}

// Authorize implements authorizer.Authorizer. A member that cannot be asked has no
// opinion, and the reason says so.
func (d *Delegation) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	who, ok := a.GetUser().(*memberUser)
	if !ok || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if terms, exposed := d.terms(who.cluster, a.GetAPIGroup()); !exposed || terms.Authorization != v1alpha1.AuthorizationMember {
		return authorizer.DecisionNoOpinion, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	there, err := d.way(ctx, who.cluster)
	if err == nil {
		var decision authorizer.Decision
		var reason string
		if decision, reason, err = there.Authorize(ctx, thereAttributes{a, &who.there}); err == nil {
			return decision, reason, nil
		}
	}
	klog.V(2).InfoS("A member could not be asked what its user may do", "cluster", who.cluster, "user", who.Name, "err", err)
	return authorizer.DecisionNoOpinion, fmt.Sprintf("cluster %s is to say what its users may do, and could not be asked", who.cluster), nil
}

// way gives the way to ask a member. What was answered before is forgotten when
// the member is reached otherwise: it may be another.
func (d *Delegation) way(ctx context.Context, cluster string) (authorizer.Authorizer, error) {
	now := d.clock.Now()
	d.mu.Lock()
	known, ok := d.ways[cluster]
	d.mu.Unlock()
	if ok && now.Sub(known.since) < wayFor {
		return known.authorizer, nil
	}
	cfg, digest, err := d.reach(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if !ok || known.digest != digest {
		if known.authorizer, err = ask(cfg); err != nil {
			return nil, fmt.Errorf("make a client of cluster %s: %w", cluster, err)
		}
		known.digest = digest
	}
	known.since = now
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ways[cluster] = known
	return known.authorizer, nil
}

func ask(cfg *rest.Config) (authorizer.Authorizer, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the answers are cached, and a member's server protects itself
	cfg.Timeout = askFor
	cfg.UserAgent = "atoll-authorization"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	// Once more after a lost connection; the client has no time for more.
	again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1, Steps: 2}
	return webhook.NewFromInterface(client.AuthorizationV1(), verdictsFor, verdictsFor, again,
		authorizer.DecisionNoOpinion, metrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
}

// thereAttributes are a request as the member sees it.
type thereAttributes struct {
	authorizer.Attributes
	user *user.DefaultInfo
}

func (a thereAttributes) GetUser() user.Info { return a.user }
