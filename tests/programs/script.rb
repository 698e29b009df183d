# Objects, threads, forks and spawned programs; the output is the same at each run.
require 'digest'
require 'json'
require 'open3'
require 'set'
require 'stringio'
require 'zlib'

def sum_of(seed, count)
  lists = Hash.new { |hash, key| hash[key] = [] }
  count.times do |i|
    lists[(i * 7919 + seed) % 499] << { n: i, text: (97 + i % 26).chr * (i % 300), at: i * 0.5 }
  end
  digest = Digest::SHA256.new
  lists.keys.sort.each { |key| lists[key].each { |item| digest << "#{key} #{item[:n]} #{item[:text]} #{item[:at]}" } }
  digest.hexdigest
end

$stdout.sync = true
puts sum_of(0, 15_000)

# The collector moves objects and must correct every reference.
kept = (1..8_000).map { |i| ["key #{i}" * (i % 7 + 1), i.to_s.to_sym, Set[i, i * 2]] }
kept.select!.with_index { |_, i| i % 3 != 0 }
2.times { GC.start(full_mark: true, immediate_sweep: true) }
GC.compact if GC.respond_to?(:compact)
puts Digest::MD5.hexdigest(kept.map { |a, b, c| "#{a}#{b}#{c.to_a.inspect}" }.join)

# Marshal, JSON, zlib and regular expressions.
copy = Marshal.load(Marshal.dump(kept))
puts copy == kept
puts Digest::MD5.hexdigest(JSON.generate(JSON.parse(JSON.generate(kept.map { |a, _, c| [a, c.to_a] }))))
packed = Zlib::Deflate.deflate(kept.map(&:first).join, 9)
puts Zlib::Inflate.inflate(packed).bytesize
text = (1..8_000).map { |n| "word#{n}-#{n * 3}" }.join(' ')
puts text.scan(/(\w+?)(\d+)-(\d*5)\b/).length, Digest::MD5.hexdigest(text.gsub(/(\d+)-(\d+)/) { $2 + '<' * ($1.to_i % 7) })
puts((1..400).inject(:*).to_s.length, (3**5_000).digits.sum)

# Threads that allocate at the same time.
threads = (0...8).map { |n| Thread.new { sum_of(n, 1_500) } }
puts threads.map(&:value).join(' ')

# Children forked while threads run; each collects garbage, allocates and answers through a pipe.
busy = (0...3).map { |n| Thread.new { loop { sum_of(n, 200) and sleep 0.001 } } }
children = (1..8).map do |n|
  from, to = IO.pipe
  pid = fork do
    from.close
    GC.start
    to.write(sum_of(n, 800))
    to.close
    exit!(n)
  end
  to.close
  [pid, from]
end
children.each do |pid, from|
  answer = from.read
  Process.wait(pid)
  puts "#{$?.exitstatus} #{answer}"
end

# Programs, started by every function that Ruby has.
puts `echo backquoted`, system('exit 7').inspect, $?.exitstatus
puts Open3.capture2('sort -n', stdin_data: (1..2000).to_a.reverse.join("\n")).first.lines.length
20.times { |n| Process.wait(spawn("exit #{n}")) and print $?.exitstatus, ' ' }
puts IO.popen(['tr', 'a-z', 'A-Z'], 'r+') { |io| io.write('popen'); io.close_write; io.read }
busy.each(&:kill).each(&:join)
puts 'end'
