package join

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// whyNotCopied returns why an object of a member is not copied to Atoll, or "". Owners are another question:
// see whyOwned.
func whyNotCopied(k interpret.KindInfo, kinds interpret.Catalog, live *unstructured.Unstructured) string {
	switch why := kinds.StaysHome(live); {
	case live.GetDeletionTimestamp() != nil:
		return "it is being deleted there"
	case live.GetLabels()[v1alpha1.ManagedLabel] == "true":
		return "Atoll manages it there already. If another control plane does, let the cluster leave that one first"
	case interpret.IsSystemNamespace(live.GetNamespace()) && !strings.HasPrefix(k.Group, "rbac."):
		return "objects in namespace " + live.GetNamespace() + " belong to the cluster itself"
	default:
		return why
	}
}
