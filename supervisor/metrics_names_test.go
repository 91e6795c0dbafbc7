package supervisor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"
)

// An alert on a metric that does not exist never fires, and says nothing.
func TestAlertsDashboardAndReferenceNameMetricsThatExist(t *testing.T) {
	exist := map[string]bool{}
	descriptions := make(chan *prometheus.Desc, 1000)
	newMetrics(&board{}).registry().Describe(descriptions)
	close(descriptions)
	fqName := regexp.MustCompile(`fqName: "(etcd_warden_[a-z_]+)"`)
	for d := range descriptions {
		if m := fqName.FindStringSubmatch(d.String()); m != nil {
			exist[m[1]] = true
		}
	}
	if len(exist) < 10 {
		t.Fatalf("only %d metrics of our own: %v", len(exist), exist)
	}
	named := map[string]map[string]bool{}
	for _, file := range []string{"packaging/alerts.yaml", "packaging/grafana/etcd-warden.json", "docs/metrics.md"} {
		content, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		named[file] = map[string]bool{}
		for _, name := range regexp.MustCompile(`etcd_warden_[a-z_]+`).FindAllString(string(content), -1) {
			named[file][name] = true
			if !exist[name] {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
	for name := range exist {
		if !named["docs/metrics.md"][name] {
			t.Errorf("docs/metrics.md does not name %s", name)
		}
	}
}

// An alert without a severity or a word about what to do wakes somebody for nothing; a dashboard that is no JSON shows
// nothing.
func TestAlertsAndDashboardAreWellFormed(t *testing.T) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	f, err := os.Open("../packaging/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	strict := yaml.NewDecoder(f)
	strict.KnownFields(true)
	if err := strict.Decode(&rules); err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			count++
			if r.Alert == "" || r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %q is not complete", r.Alert)
			}
		}
	}
	if count == 0 {
		t.Error("no alerts")
	}
	dashboard, err := os.ReadFile("../packaging/grafana/etcd-warden.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(dashboard) {
		t.Error("the dashboard is not JSON")
	}
}
