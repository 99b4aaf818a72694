package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// reviewServer is a member that answers SubjectAccessReviews.
type reviewServer struct {
	asked  []authorizationv1.SubjectAccessReviewSpec
	reach  int
	digest string
	away   bool
}

func (j *reviewServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	review := authorizationv1.SubjectAccessReview{}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	j.asked = append(j.asked, review.Spec)
	review.Status.Allowed = review.Spec.User == "alice" && review.Spec.ResourceAttributes.Verb == "list"
	review.Status.Reason = "decided by the member"
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

func TestDelegation(t *testing.T) {
	j := &reviewServer{digest: "one"}
	server := httptest.NewServer(j)
	defer server.Close()
	clk := clocktesting.NewFakePassiveClock(start)
	d := NewDelegatedAuthorizer(func(cluster, group string) (v1alpha1.SharedAPISpec, bool) {
		mode := map[string]v1alpha1.AuthorizationMode{"a.example": v1alpha1.AuthorizationMember, "b.example": v1alpha1.AuthorizationAtoll}[group]
		return v1alpha1.SharedAPISpec{Authorization: mode}, cluster == "east" && mode != ""
	}, func(_ context.Context, cluster string) (*rest.Config, string, error) {
		j.reach++
		if j.away || cluster != "east" {
			return nil, "", errors.New("no configuration for " + cluster)
		}
		return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, j.digest, nil
	}, clk)

	of := func(cluster, name string) user.Info {
		who, err := (&member{name: cluster, headers: headerNames{username: []string{"X-Remote-User"}, group: []string{"X-Remote-Group"}}}).
			identify(http.Header{"X-Remote-User": {name}, "X-Remote-Group": {"crew", "system:masters"}})
		if err != nil {
			t.Fatal(err)
		}
		return who.info
	}
	request := func(who user.Info, verb, group string) authorizer.Attributes {
		return authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: "notes", Namespace: "ns", ResourceRequest: true}
	}
	for _, c := range []struct {
		name  string
		a     authorizer.Attributes
		want  authorizer.Decision
		asked int
		says  string
	}{
		{"what the member allows", request(of("east", "alice"), "list", "a.example"), authorizer.DecisionAllow, 1, "decided by the member"},
		{"again, from the cache", request(of("east", "alice"), "list", "a.example"), authorizer.DecisionAllow, 1, ""},
		{"what the member does not allow", request(of("east", "bob"), "list", "a.example"), authorizer.DecisionNoOpinion, 2, ""},
		{"a group that Atoll decides on", request(of("east", "alice"), "list", "b.example"), authorizer.DecisionNoOpinion, 2, ""},
		{"a group that is not exposed", request(of("east", "alice"), "list", "rbac.authorization.k8s.io"), authorizer.DecisionNoOpinion, 2, ""},
		{"a member that nothing is exposed to", request(of("west", "alice"), "list", "a.example"), authorizer.DecisionNoOpinion, 2, ""},
		{"a user of Atoll with such a name", request(&user.DefaultInfo{Name: "east:alice", Groups: []string{"atoll:cluster:east"}}, "list", "a.example"), authorizer.DecisionNoOpinion, 2, ""},
		{"no objects", authorizer.AttributesRecord{User: of("east", "alice"), Verb: "get", Path: "/metrics"}, authorizer.DecisionNoOpinion, 2, ""},
	} {
		got, reason, err := d.Authorize(t.Context(), c.a)
		if got != c.want || err != nil || !strings.Contains(reason, c.says) || len(j.asked) != c.asked {
			t.Errorf("%s: %v %q %v, asked %d times; want %v, %d", c.name, got, reason, err, len(j.asked), c.want, c.asked)
		}
	}
	// The member is asked about its own user, by the member's names.
	want := authorizationv1.SubjectAccessReviewSpec{User: "alice", Groups: []string{"crew", "system:masters"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "ns", Verb: "list", Group: "a.example", Version: "v1", Resource: "notes"}}
	if diff := cmp.Diff(want, j.asked[0]); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if j.reach != 1 {
		t.Errorf("the client configuration was read %d times", j.reach)
	}

	// Another configuration may lead to another member: cached decisions are dropped.
	clk.SetTime(start.Add(clientTTL))
	j.digest = "two"
	if got, _, err := d.Authorize(t.Context(), request(of("east", "alice"), "list", "a.example")); got != authorizer.DecisionAllow || err != nil || len(j.asked) != 3 {
		t.Errorf("with another configuration: %v, %v, asked %d times", got, err, len(j.asked))
	}
	// A member that does not respond allows nothing, and the reason names the cause.
	clk.SetTime(start.Add(2 * clientTTL))
	j.away = true
	got, reason, err := d.Authorize(t.Context(), request(of("east", "alice"), "list", "a.example"))
	if got != authorizer.DecisionNoOpinion || err != nil || !strings.Contains(reason, "could not be asked") {
		t.Errorf("away: %v %q %v", got, reason, err)
	}
	j.away = false
	server.Close()
	began := time.Now()
	if got, reason, err := d.Authorize(t.Context(), request(of("east", "carol"), "list", "a.example")); got != authorizer.DecisionNoOpinion || err != nil ||
		!strings.Contains(reason, "could not be asked") || time.Since(began) > 2*reviewTimeout {
		t.Errorf("silent: %v %q %v after %v", got, reason, err, time.Since(began))
	}
}
