package interpret

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// derivedAnnotation on a ServiceImport names the Service that programs use in its place.
const derivedAnnotation = "multicluster.kubernetes.io/derived-service"

// importFollows: a ServiceImport goes where its derived Service goes. Without one, any workload may use it.
func importFollows(obj *unstructured.Unstructured, out *attachments) error {
	derived := obj.GetAnnotations()[derivedAnnotation]
	if derived == "" {
		return everyWorkload(obj, out)
	}
	out.core("Service", derived)
	return nil
}

// shareImport sets the addresses that the derived Service has in the cluster.
func shareImport(obj map[string]any, share Share) {
	recorded := text(obj, "metadata", "annotations", v1alpha1.ClusterIPsAnnotation)
	if recorded == "" {
		return
	}
	var addresses map[string][]string
	if err := json.Unmarshal([]byte(recorded), &addresses); err != nil {
		return // the controller of ServiceImports writes it again
	}
	if own := addresses[share.Cluster]; len(own) > 0 {
		ips := make([]any, 0, len(own))
		for _, ip := range own {
			ips = append(ips, ip)
		}
		setNested(obj, ips, "spec", "ips")
	}
}
