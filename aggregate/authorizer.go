package aggregate

import (
	"context"
	"fmt"
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
	// decisionTTL is how long a member's answer is cached, as in upstream's servers
	// that delegate authorization.
	decisionTTL = 10 * time.Second
	// reviewTimeout bounds one SubjectAccessReview, because a client is waiting for it.
	reviewTimeout = 3 * time.Second
)

// DelegatedAuthorizer is an authorizer for groups whose SharedAPI lets each member
// decide what its users may do. It sends a SubjectAccessReview to the user's own
// member, under the name that the user has there. It has no opinion on any other
// request.
//
// So a member can allow its own users to act on the groups that are exposed to it. It
// cannot grant anything in another group or to users of another member.
type DelegatedAuthorizer struct {
	sharedAPI SharedAPIFunc
	members   *perMember[authorizer.Authorizer]
}

// SharedAPIFunc returns the spec of the SharedAPI that exposes a group to a member, if
// one does.
type SharedAPIFunc func(cluster, group string) (terms v1alpha1.SharedAPISpec, exposed bool)

// NewDelegatedAuthorizer returns an authorizer that asks the members of
// groups whose SharedAPI has the authorization mode Member.
func NewDelegatedAuthorizer(terms SharedAPIFunc, reach ClientConfigFunc, clk clock.PassiveClock) *DelegatedAuthorizer {
	// If the client configuration changes, the cached answers go with the authorizer: the
	// configuration may lead to another member.
	return &DelegatedAuthorizer{terms, newPerMember(reach, newMemberAuthorizer, clk)}
}

// Authorize implements authorizer.Authorizer. If a member cannot be asked, the decision
// is "no opinion" and the reason has the cause.
func (d *DelegatedAuthorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	who, ok := a.GetUser().(*memberUser)
	if !ok || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if terms, exposed := d.sharedAPI(who.cluster, a.GetAPIGroup()); !exposed || terms.Authorization != v1alpha1.AuthorizationMember {
		return authorizer.DecisionNoOpinion, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	there, _, err := d.members.get(ctx, who.cluster)
	if err == nil {
		var decision authorizer.Decision
		var reason string
		if decision, reason, err = there.Authorize(ctx, memberAttributes{a, &who.inMember}); err == nil {
			return decision, reason, nil
		}
	}
	klog.V(2).InfoS("SubjectAccessReview in member cluster failed", "cluster", who.cluster, "user", who.Name, "err", err)
	return authorizer.DecisionNoOpinion, fmt.Sprintf("cluster %s decides what its users may do, and could not be asked", who.cluster), nil
}

func newMemberAuthorizer(cfg *rest.Config) (authorizer.Authorizer, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the answers are cached, and a member's server protects itself
	cfg.Timeout = reviewTimeout
	cfg.UserAgent = "atoll-authorization"
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	// One retry after a lost connection; the client cannot wait longer.
	again := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 1, Steps: 2}
	return webhook.NewFromInterface(client.AuthorizationV1(), decisionTTL, decisionTTL, again,
		authorizer.DecisionNoOpinion, metrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
}

// memberAttributes are the attributes of a request as the member sees them.
type memberAttributes struct {
	authorizer.Attributes
	user *user.DefaultInfo
}

func (a memberAttributes) GetUser() user.Info { return a.user }
