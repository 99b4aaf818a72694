package main

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// parts are the objects of a Site.
type parts struct {
	pages   *corev1.ConfigMap
	service *corev1.Service
	web     *appsv1.Deployment
	cache   *appsv1.StatefulSet
	probe   *corev1.Pod
}

func partsOf(site *Site) *parts {
	named := func(suffix string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name + suffix}
	}
	return &parts{
		pages:   &corev1.ConfigMap{ObjectMeta: named("-pages")},
		service: &corev1.Service{ObjectMeta: named("")},
		web:     &appsv1.Deployment{ObjectMeta: named("")},
		cache:   &appsv1.StatefulSet{ObjectMeta: named("-cache")},
		probe:   &corev1.Pod{ObjectMeta: named("-probe")},
	}
}

func (p *parts) all() []client.Object {
	return []client.Object{p.pages, p.service, p.web, p.cache, p.probe}
}

// want sets the operator's fields of an object and keeps the fields that the API server has set.
func (p *parts) want(site *Site, object client.Object) {
	switch object {
	case p.pages:
		p.pages.Data = site.Spec.Pages
	case p.service:
		p.service.Spec.Selector = labels(site, "web")
		p.service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}}
	case p.web:
		p.web.Spec.Replicas = &site.Spec.Replicas
		if p.web.CreationTimestamp.IsZero() {
			p.web.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(site, "web")}
			p.web.Spec.Template = template(site, "web")
			mountPages(site, &p.web.Spec.Template.Spec)
		}
		p.web.Spec.Template.Spec.Containers[0].Image = site.Spec.Image
	case p.cache:
		if p.cache.CreationTimestamp.IsZero() {
			p.cache.Spec.ServiceName = site.Name
			p.cache.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels(site, "cache")}
			p.cache.Spec.Template = template(site, "cache")
		}
		p.cache.Spec.Template.Spec.Containers[0].Image = "varnish:7.6"
	case p.probe:
		if p.probe.CreationTimestamp.IsZero() {
			t := template(site, "probe")
			p.probe.Labels, p.probe.Spec = t.Labels, t.Spec
			p.probe.Spec.Containers[0].Image = "curlimages/curl:8.11.0"
		}
	}
}

func labels(site *Site, part string) map[string]string {
	return map[string]string{"web.example.com/site": site.Name, "web.example.com/part": part}
}

func template(site *Site, part string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels(site, part)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: part}}},
	}
}

func mountPages(site *Site, pod *corev1.PodSpec) {
	pod.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "pages", MountPath: "/usr/share/nginx/html"}}
	pod.Volumes = []corev1.Volume{{Name: "pages", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: site.Name + "-pages"}},
	}}}
}

func archiveJob(site *Site) *batchv1.Job {
	t := template(site, "archive")
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	t.Spec.Containers[0].Image = "restic/restic:0.17.3"
	mountPages(site, &t.Spec)
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name + "-archive"},
		Spec:       batchv1.JobSpec{Template: t},
	}
}
