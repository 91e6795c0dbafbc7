package ownership

import (
	"strings"
	"testing"
	"time"
)

func goodSettings() Settings {
	s := Defaults()
	s.Name, s.ID = "owner.c1.example.org.", "seed-a/7"
	return s
}

func TestDefaultsAreSafe(t *testing.T) {
	if err := goodSettings().Validate(); err != nil {
		t.Fatal(err)
	}
}

// TestUnsafeSettingsAreRefused: each with one line that names the setting, or the inequality that it breaks.
func TestUnsafeSettingsAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Settings)
		want   string
	}{
		"no name":                         {func(s *Settings) { s.Name = "" }, "owner-name is empty"},
		"relative name":                   {func(s *Settings) { s.Name = "owner.c1" }, "is relative: end it with a dot (owner.c1.)"},
		"root":                            {func(s *Settings) { s.Name = "." }, "not a domain name"},
		"empty label":                     {func(s *Settings) { s.Name = "a..b." }, "not a domain name"},
		"long label":                      {func(s *Settings) { s.Name = strings.Repeat("a", 64) + ".b." }, "not a domain name"},
		"wildcard":                        {func(s *Settings) { s.Name = "*.c1.example.org." }, "not a domain name"},
		"space in name":                   {func(s *Settings) { s.Name = "a b.org." }, "not a domain name"},
		"escaped dot":                     {func(s *Settings) { s.Name = `owner.org\.` }, "not a domain name"},
		"no id":                           {func(s *Settings) { s.ID = "" }, "owner-id is empty"},
		"control character":               {func(s *Settings) { s.ID = "seed\n" }, "control or invalid characters"},
		"invalid UTF-8":                   {func(s *Settings) { s.ID = "seed\xff" }, "control or invalid characters"},
		"space at the end":                {func(s *Settings) { s.ID = "seed " }, "begins or ends with a space"},
		"long id":                         {func(s *Settings) { s.ID = strings.Repeat("a", 256) }, "255 is the limit"},
		"id against pattern":              {func(s *Settings) { s.IDPattern = "site-[0-9]+" }, "does not match owner-id-pattern"},
		"part of the pattern":             {func(s *Settings) { s.IDPattern = "seed" }, "does not match owner-id-pattern"},
		"bad pattern":                     {func(s *Settings) { s.IDPattern = "(" }, "not a regular expression"},
		"server by name":                  {func(s *Settings) { s.Servers = []string{"ns1.example.org:53"} }, "names are not looked up"},
		"server with port 0":              {func(s *Settings) { s.Servers = []string{"192.0.2.1:0"} }, "is not an address"},
		"absent":                          {func(s *Settings) { s.Absent = "maybe" }, "owner-absent"},
		"start":                           {func(s *Settings) { s.StartWithoutStore = "always" }, "start-without-store"},
		"E + T + g + 30s > W":             {func(s *Settings) { s.Lease = 30 * time.Minute }, "E + T + g + 30s > W: owner-lease 30m0s"},
		"E + T + g + 30s > W by a second": {func(s *Settings) { s.WaitFinal = s.Lease + s.RecordTTL + s.TermGrace + 29*time.Second }, "E + T + g + 30s > W"},
		"I > T":                           {func(s *Settings) { s.RecordTTL = 4 * time.Second }, "I > T: owner-interval 5s is longer than owner-record-ttl 4s"},
		"i > I":                           {func(s *Settings) { s.SuspectInterval = 6 * time.Second }, "i > I"},
		"T + I + P > J":                   {func(s *Settings) { s.MaxGap = 19 * time.Second }, "T + 1.1 I + P > J"},
		"J >= E":                          {func(s *Settings) { s.MaxGap = s.Lease }, "J >= E"},
		"short lease":                     {func(s *Settings) { s.Lease, s.MaxGap = 15*time.Second, 14*time.Second }, "E <= T + 1.1 I + P"},
		"no lease":                        {func(s *Settings) { s.Lease, s.WaitFinal = 0, 0 }, "owner-unsafe-no-lease"},
		"no lease but a wait":             {func(s *Settings) { s.Lease, s.UnsafeNoLease = 0, true }, "E > W"},
		"one answer is a loss":            {func(s *Settings) { s.LostCount = 1 }, "owner-lost-count"},
		"no regain":                       {func(s *Settings) { s.RegainCount = 0 }, "owner-regain-count"},
		"negative":                        {func(s *Settings) { s.TermGrace = -1 }, "owner-term-grace"},
		"busy poll":                       {func(s *Settings) { s.Interval = time.Millisecond }, "owner-interval"},
		"part of a second":                {func(s *Settings) { s.RecordTTL = 10*time.Second + 1 }, "whole seconds"},
	} {
		t.Run(name, func(t *testing.T) {
			s := goodSettings()
			tt.change(&s)
			err := s.Validate()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want a line with %q", err, tt.want)
			}
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.Contains(line, ":") && !strings.Contains(line, "at least") {
					t.Errorf("%q does not say what to do", line)
				}
			}
		})
	}
}

func TestSettingsAtTheEdgeAreAccepted(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"W to the second":     func(s *Settings) { s.WaitFinal = s.Lease + s.RecordTTL + s.TermGrace + 30*time.Second },
		"wait for ever":       func(s *Settings) { s.WaitFinal = 0 },
		"no lease on purpose": func(s *Settings) { s.Lease, s.WaitFinal, s.UnsafeNoLease = 0, 0, true },
		"IPv4":                func(s *Settings) { s.Servers = []string{"192.0.2.1", "192.0.2.1:5353"} },
		"IPv6": func(s *Settings) {
			s.Servers = []string{"2001:db8::1", "[2001:db8::1]:53", "[fe80::1%eth0]:53", "fe80::1%eth0"}
		},
		"pattern":              func(s *Settings) { s.IDPattern = "seed-[a-z]/[0-9]+" },
		"underscores":          func(s *Settings) { s.Name = "_owner._etcd.example.org." },
		"an id of other words": func(s *Settings) { s.ID = `Zürich "1" \ x` },
	} {
		s := goodSettings()
		change(&s)
		if err := s.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWindowsAreThePublishedOnes: the numbers that operators plan with.
func TestWindowsAreThePublishedOnes(t *testing.T) {
	w := goodSettings().Windows()
	for name, tt := range map[string]struct{ got, want time.Duration }{
		"loss visible": {w.LossVisible, 10*time.Second + 5500*time.Millisecond + 4*time.Second + 5*time.Second + 5*time.Second},
		"silence":      {w.Silence, 15*time.Minute + 5*time.Second},
		"destination":  {w.Destination, 15*time.Minute + 900*time.Millisecond + 5*time.Second},
		"spare":        {w.Spare, 15*time.Minute - 5900*time.Millisecond},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %s, want %s", name, tt.got, tt.want)
		}
	}
	if n := len(w.Explain()); n != 5 {
		t.Errorf("explained in %d lines, want 5", n)
	}
	s := goodSettings()
	s.Lease, s.WaitFinal, s.UnsafeNoLease = 0, 0, true
	if w := s.Windows(); w.Silence != 0 || w.Wait != 0 || len(w.Explain()) != 3 || len(s.Warnings()) != 1 {
		t.Errorf("without lease and wait: %+v", w)
	}
}
