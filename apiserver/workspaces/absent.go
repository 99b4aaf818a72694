package workspaces

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	fleetv1alpha1 "github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	tenancyv1alpha1 "github.com/atoll-dev/atoll/api/tenancy/v1alpha1"
	"github.com/atoll-dev/atoll/apiserver"
)

// Absence is a part of the root's API that workspaces do not have.
type Absence struct {
	// Group has the resources.
	Group string
	// Resources are those that are absent, RESOURCE/SUBRESOURCE for a subresource; none stands for all of the group.
	Resources []string
	// Reason is why they are absent, and Instead is what users do instead.
	Reason, Instead string
	// Refused is set if discovery has the resources, so that clients build their requests as for any cluster. These get 501 from the storage of the resource,
	// unless the workspace has them elsewhere (Config.Elsewhere).
	Refused bool
}

// Absences returns everything that the root serves and workspaces do not. docs/workspaces.md has the same table.
func Absences() []Absence {
	return []Absence{
		{Resources: []string{"nodes", "nodes/proxy", "nodes/status"}, Reason: "nodes belong to clusters", Instead: "use kubectl with a kubeconfig of the cluster"},
		{Resources: []string{"pods/attach", "pods/exec", "pods/log", "pods/portforward", "pods/proxy", "services/proxy"}, Refused: true,
			Reason: "containers run in clusters", Instead: apiserver.ContainersInstead},
		{Group: apiregistrationv1.GroupName, Reason: "workspaces send no requests to other API servers",
			Instead: "use CustomResourceDefinitions, or bind the API of another workspace with an APIBinding"},
		{Group: authenticationv1.GroupName, Resources: []string{"tokenreviews"}, Reason: "workspaces verify no tokens for other programs",
			Instead: "create a SelfSubjectReview with the token"},
		{Group: certificatesv1.GroupName, Reason: "client certificates are valid in all workspaces", Instead: "use tokens of ServiceAccounts, or request a certificate in the root"},
		{Group: flowcontrolv1.GroupName, Reason: "all workspaces share the flow control of the server",
			Instead: "configure nothing, each workspace gets its turn"},
		{Group: metricsv1beta1.GroupName, Reason: "pods and nodes belong to clusters", Instead: "use kubectl top with a kubeconfig of the cluster"},
		{Group: resourcev1.GroupName, Reason: "no scheduler allocates devices here", Instead: "create the objects in the root, or in the cluster"},
		{Group: fleetv1alpha1.Group, Resources: []string{"clusters/proxy"}, Reason: "workspaces send no requests to clusters", Instead: "use kubectl with a kubeconfig of the cluster"},
		{Group: fleetv1alpha1.Group, Resources: []string{"fleetquotas", "fleetquotas/status"}, Reason: "they bound the fleet of the root", Instead: "use ResourceQuotas and the limits of the workspace"},
		{Group: fleetv1alpha1.Group, Resources: []string{"sharedapis", "sharedapis/status"}, Reason: "clusters get APIs from the root", Instead: "use an APIExport for other workspaces, or a SharedAPI in the root"},
		{Group: fleetv1alpha1.Group, Resources: []string{"apiresourceimports", "apiresourceimports/status", "negotiatedapiresources", "negotiatedapiresources/status", "typepolicies"},
			Reason: "custom resources of workspaces are not placed", Instead: "place them from the root"},
		{Group: "gateway.networking.k8s.io", Resources: []string{"referencegrants"}, Reason: "the server defines the kind in the root alone",
			Instead: "define it, with the CustomResourceDefinition of the Gateway API"},
	}
}

// Covers reports whether a resource, or RESOURCE/SUBRESOURCE, is absent; "" stands for the group itself.
func (a Absence) Covers(group, resource string) bool {
	return group == a.Group && (len(a.Resources) == 0 || slices.Contains(a.Resources, resource))
}

// Row returns the line of the table in docs/workspaces.md.
func (a Absence) Row() string {
	var names []string
	for _, resource := range a.Resources {
		if parent, _, sub := strings.Cut(resource, "/"); sub && slices.Contains(a.Resources, parent) {
			continue // it is absent with its parent
		}
		names = append(names, "`"+resource+"`")
	}
	what := strings.Join(names, ", ")
	switch {
	case what == "":
		what = "`" + a.Group + "`"
	case a.Group != "":
		what += " of `" + a.Group + "`"
	}
	return fmt.Sprintf("| %s | %s | %s |", what, a.Reason, a.Instead)
}

// absenceOf returns the absence of a request's path; nil if workspaces serve it, or if no server has it.
func absenceOf(info *request.RequestInfo) *Absence {
	group, resource := info.APIGroup, ""
	switch {
	case info.IsResourceRequest && info.Subresource != "":
		resource = info.Resource + "/" + info.Subresource
	case info.IsResourceRequest:
		resource = info.Resource
	case strings.HasPrefix(info.Path, "/apis/"): // discovery of the group
		group = groupOf(info.Path)
	default:
		return nil
	}
	for _, a := range Absences() {
		if !a.Refused && a.Covers(group, resource) {
			return &a
		}
	}
	return nil
}

// status returns the answer to a request.
func (a Absence) status(info *request.RequestInfo) *apierrors.StatusError {
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	what := resource.String()
	switch {
	case !info.IsResourceRequest:
		what = groupOf(info.Path)
	case info.Subresource != "":
		what = info.Resource + "/" + info.Subresource
	}
	err := apierrors.NewGenericServerResponse(http.StatusNotFound, info.Verb, resource, "", "", 0, false)
	err.ErrStatus.Message = fmt.Sprintf("workspaces do not have %s: %s: %s", what, a.Reason, a.Instead)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: tenancyv1alpha1.NotInWorkspaces, Message: a.Instead}}
	return err
}

// withAbsences answers the requests for what workspaces lack of groups that they have. Other groups are answered at the end of the chain: a workspace
// may have them from a definition or an APIBinding.
func (c *chain) withAbsences(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, known := request.RequestInfoFrom(r.Context())
		// Custom resources have no subresources but status and scale.
		if known && info.IsResourceRequest && (c.installed.Has(info.APIGroup) || info.APIGroup == fleetv1alpha1.Group && info.Subresource == "proxy") {
			if a := absenceOf(info); a != nil {
				answer(w, r, a.status(info))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// noSuchPath is the end of the chain: neither the server nor the workspace has the path.
func noSuchPath(w http.ResponseWriter, r *http.Request) {
	if info, known := request.RequestInfoFrom(r.Context()); known {
		if a := absenceOf(info); a != nil {
			answer(w, r, a.status(info))
			return
		}
	}
	http.Error(w, "404 page not found", http.StatusNotFound)
}
