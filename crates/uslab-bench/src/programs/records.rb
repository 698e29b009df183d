# Objects, hashes, strings and JSON of Ruby: what a web application builds and drops for each page.
# It fails if a record was lost on the way.
require "json"

n = Integer(ARGV[0])
Record = Struct.new(:id, :name, :tags, :parent)

def round(n)
  last = nil
  records = Array.new(n) do |i|
    tags = [3, 7, 31].map { |k| "a tag that is too long to be embedded: #{i % k}" }
    last = Record.new(i, "record-#{i}-#{'x' * (i % 64)}", tags, i % 16 == 0 ? nil : last)
  end
  hashes = records.map { |r| { "id" => r.id, "name" => r.name, "tags" => r.tags, "more" => { "a" => [r.id] } } }
  records = last = nil
  # Every second goes first, so that what stays lies scattered.
  kept = hashes.each_slice(2).map(&:first)
  hashes = nil
  text = kept.map { |h| JSON.generate(h) }.join("\n")
  kept = nil
  back = text.each_line.map { |line| JSON.parse(line) }
  groups = back.group_by { |h| h["tags"].last }
  groups.each_value { |group| group.map { |h| h["name"].upcase + h["tags"].join(",") }.sort! }
  back.sum { |h| h["more"]["a"][0] }
end

3.times do
  half = (n + 1) / 2
  abort "records.rb: records were lost" unless round(n) == half * (half - 1)
end
