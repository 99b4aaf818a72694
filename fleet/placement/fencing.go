package placement

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// unfenced reports whether a policy fences an object, and a cluster cannot.
func (p *Policy) unfenced(c *Cluster, o *Object) bool {
	return p.spec.Fencing != nil && (!c.fences() || !o.Divisible)
}

func (c *Cluster) fences() bool { return c.Object != nil && c.Object.Status.Fences }

// Fencing returns the fencing of an object; nil if clusters do not stop it.
func (p *Policy) Fencing(o *Object) *v1alpha1.BindingFencing {
	if p == nil || p.spec.Fencing == nil || !o.Divisible {
		return nil
	}
	lease, _ := p.spec.Fencing.Times()
	return &v1alpha1.BindingFencing{Lease: metav1.Duration{Duration: lease}}
}
